// LayerNorm: norms.h lists the arguments of each entry.
#include "norms.h"

NORM_ENTRY(layer_norm_forward, (forward<true, false>))
NORM_ENTRY(layer_norm_backward, (backward<true, false>))
NORM_ENTRY(add_layer_norm_forward, (forward<true, true>))
NORM_ENTRY(add_layer_norm_backward, (backward<true, true>))
