"""Fine-tuning: examples and their prepared form, sampling, losses, the recipe and the loop."""
