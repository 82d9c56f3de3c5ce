"""Problems: references, inputs, tolerances, problem files and the training suite."""
