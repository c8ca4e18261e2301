"""The metric `mean_accuracy` of Hugging Face `evaluate`, in the file of that name."""
