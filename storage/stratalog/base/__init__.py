"""The seams and the vocabulary: errors, names, clock, filesystem, scheduler, randomness. Imports nothing of
ours."""
