"""Training data: sources to checked examples, their prepared form, and hard negatives."""
