"""How jobs stand, what they have stored, and what of that no run needs again."""
