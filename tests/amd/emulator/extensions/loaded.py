import os

from torch.utils.cpp_extension import load

HERE = os.path.dirname(os.path.abspath(__file__))
rows = load(
    name="rows", sources=[os.path.join(HERE, "loaded.cpp"), os.path.join(HERE, "loaded.cu")]
)


def centred(x, scalars):
    return (rows.run(x),)
