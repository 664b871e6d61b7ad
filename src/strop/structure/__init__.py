"""What the codes mean: studies that edit programs and watch the field."""
