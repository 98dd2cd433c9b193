"""Tests of what makes images: the base, environment images, and the scripts around them."""
