"""Which questions cannot have the same answer, however alike their vectors are: Chinese and English.

Pure: no numpy, no clock, no state. `compare` says what differs hard (its `conflict`), whether two questions differ in
nothing but form (`identical`), and gives features to the verifier. Of other languages it knows numbers, ids and signs;
every other difference counts as one.
"""

from forebay.cache.semantic.guard.comparing import FEATURES, Verdict, compare
from forebay.cache.semantic.guard.reading import Reading, read

__all__ = ["FEATURES", "Reading", "Verdict", "compare", "read"]
