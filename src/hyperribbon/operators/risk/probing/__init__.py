"""What is looked at before a risk is trusted: model, loss and data, and their derivatives."""
