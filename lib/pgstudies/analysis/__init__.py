"""From samples to a verdict, published beside reproduced."""
