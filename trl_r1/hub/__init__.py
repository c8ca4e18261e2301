"""Runs on the Hugging Face Hub: what is pushed there, the cards it gets, and how it comes back."""
