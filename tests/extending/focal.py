"""A focal loss: samples that are predicted well already count less."""

from rayfl import Classification


class Focal(Classification):
    gamma = 2.0

    def loss(self, outputs, labels):
        log_likelihood = outputs.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -((1 - log_likelihood.exp()) ** self.gamma) * log_likelihood
