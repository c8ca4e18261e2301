"""The metric `pass_at_k` of Hugging Face `evaluate`, in the file of that name."""
