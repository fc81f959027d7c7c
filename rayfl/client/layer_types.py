"""The layer types that trainers and evaluation know, grouped by what can be done with them. There is no other list."""

from torch import nn

_POINTWISE = {nn.Flatten, nn.Dropout, nn.Identity, nn.ReLU}

#: Layers whose arithmetic for many models is written out in `layers`.
PLAIN = _POINTWISE | {nn.LeakyReLU, nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d}

#: Layers of dense networks: either one matrix product per row (client), or exact elementwise operations.
DENSE = _POINTWISE | {nn.LeakyReLU, nn.Linear, nn.Sequential}

#: Layers that `vmap` turns into one product for many models, which is faster than one model after the other. With
#: convolutions, `vmap` is slower.
VMAPPED = _POINTWISE | {nn.Linear, nn.Sequential, nn.BatchNorm1d, nn.Tanh, nn.Sigmoid}
