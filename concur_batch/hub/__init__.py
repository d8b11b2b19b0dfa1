"""What a model directory as on the Hugging Face hub says of its tokens and its chat template."""
