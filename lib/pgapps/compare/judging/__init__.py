"""What a comparison came to: effects from its records, guards of their validity, and the result."""
