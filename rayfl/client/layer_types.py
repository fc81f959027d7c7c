"""The types of layers that trainers and tests know, each for what can be done with it. Only here are they listed."""

from torch import nn

_POINTWISE = {nn.Flatten, nn.Dropout, nn.Identity, nn.ReLU}

#: Layers whose arithmetic for many models is written out in `layers`.
PLAIN = _POINTWISE | {nn.LeakyReLU, nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d}

#: Of networks that are trained together: layers that are products of matrices, one for each row, or exact.
DENSE = _POINTWISE | {nn.LeakyReLU, nn.Linear, nn.Sequential}

#: Layers of which `vmap` makes one product for many models, faster than one model after the other; with convolutions it
#: loses.
VMAPPED = _POINTWISE | {nn.Linear, nn.Sequential, nn.BatchNorm1d, nn.Tanh, nn.Sigmoid}
