"""The seams and the vocabulary: errors, names, clock, filesystem, scheduler, randomness. Imports no package
of ours."""
