// Removed with the layer's first source.
