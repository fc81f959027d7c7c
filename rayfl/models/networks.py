"""The networks of the papers, and small ones for quick runs. Residual networks are in `residual`.

Each network is built by a function of the input's shape and the number of classes; its keyword arguments can be set
with model.options. The last fully connected layer is called `head` in all networks.
"""

import torch
from torch import nn

from rayfl.models.blocks import Shape, output_width, sequence, with_dense, with_head


def digits_cnn(input_shape: Shape, classes: int, *, channels: int = 16) -> nn.Module:
    """Two small convolutions, for scikit-learn's 8 x 8 digits: about 6,000 parameters."""
    body = sequence(
        conv1=nn.Conv2d(input_shape[0], channels, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(channels, 2 * channels, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return with_head(body, input_shape, classes)


def mlp(input_shape: Shape, classes: int, *, hidden: int = 200) -> nn.Module:
    """One hidden layer."""
    return with_dense(sequence(flatten=nn.Flatten()), input_shape, [hidden], classes)


def thesis_batch_norm(input_shape: Shape, classes: int) -> nn.Module:
    """Tables A.1 (Fashion-MNIST) and A.4 (TissueMNIST) of the thesis.

    A.1 prints 16 channels for the second batch norm, which follows a convolution with 32: 32 is meant. A.4 does not
    give the padding of the convolutions, but its classifier has 7*7*32 inputs, which needs padding 2, as in A.1.
    """
    body = sequence(
        conv1=nn.Conv2d(input_shape[0], 16, 5, padding=2),
        norm1=nn.BatchNorm2d(16),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 5, padding=2),
        norm2=nn.BatchNorm2d(32),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return with_head(body, input_shape, classes)


def thesis_three_dense(input_shape: Shape, classes: int) -> nn.Module:
    """Tables A.2 (CIFAR-10) and A.3 (PathMNIST) of the thesis.

    Both print 400 inputs of the first dense layer: this is right for 32 x 32 images, but PathMNIST's 28 x 28 give 256.
    """
    body = sequence(
        conv1=nn.Conv2d(input_shape[0], 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return with_dense(body, input_shape, [120, 84], classes)


def fedac_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """FedAC's network, section 5.1: two convolutions, three dense layers.

    The paper gives no widths, only "over 4,700,000" weights in total; these widths give 4,778,954 on CIFAR-10.
    """
    body = sequence(
        conv1=nn.Conv2d(input_shape[0], 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return with_dense(body, input_shape, [1024, 512], classes)


def fedtsdp_cnn(
    input_shape: Shape, classes: int, *, hidden: int = 512, dropout1: float = 0.25, dropout2: float = 0.5
) -> nn.Module:
    """FedTSDP's CNN, section 4.1; the paper does not mention padding (here: none) and pooling (here: one layer)."""
    body = sequence(
        conv1=nn.Conv2d(input_shape[0], 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout1=nn.Dropout(dropout1),
        flatten=nn.Flatten(),
    )
    body.add_module("dense1", nn.Linear(output_width(body, input_shape), hidden))
    body.add_module("relu3", nn.ReLU())
    body.add_module("dropout2", nn.Dropout(dropout2))
    return with_head(body, input_shape, classes)


class CharLSTM(nn.Module):
    """Embedded characters, LSTM layers, and a dense layer on the last state that predicts the next character."""

    def __init__(self, vocabulary: int, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next character: (batch, window) integers in, (batch, classes) out."""
        states, _ = self.lstm(self.embedding(characters))
        return self.head(states[:, -1])


def char_lstm(vocabulary: int, classes: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Two-layer LSTM over characters."""
    return CharLSTM(vocabulary, classes, embedding, hidden, layers)
