"""The metric `response_shape` of Hugging Face `evaluate`, in the file of that name."""
