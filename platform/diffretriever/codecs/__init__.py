"""Product quantisation: a slot vector in 1, 2 or 4 bits a dimension (`product`)."""
