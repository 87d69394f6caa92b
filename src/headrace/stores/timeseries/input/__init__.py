"""Samples in the forms that programs and other systems send."""
