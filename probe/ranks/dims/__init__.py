"""How tensors are divided over ranks: the language of dims, what classes and bytes tell, where each part lies in the whole."""
