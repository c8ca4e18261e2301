"""The metric `paired_difference` of Hugging Face `evaluate`, in the file of that name."""
