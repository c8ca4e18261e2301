"""The metric `majority_vote` of Hugging Face `evaluate`, in the file of that name."""
