"""What the training stages share: data, models, trainers' parts, the loop and its artifacts."""
