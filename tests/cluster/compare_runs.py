"""Exit with 1 unless two run folders hold the same tables: `python compare_runs.py A B [--recovered]`.

With `--recovered`, B must also note a recovery.
"""

import sys
from pathlib import Path

import rayfl

sys.path.insert(0, str(Path(__file__).parents[1]))
from tables import assert_same, recoveries

one, other = rayfl.load(sys.argv[1]), rayfl.load(sys.argv[2])
assert_same(one, other)
notes = recoveries(other)
if "--recovered" in sys.argv and not notes:
    sys.exit(f"{other.path} notes no recovery")
print(f"{len(other.rounds)} rounds, equal; recoveries: {notes or 'none'}")
