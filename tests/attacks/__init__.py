"""Attacks, carried out for real: what each party must never be able to do, tried from where that party stands."""
