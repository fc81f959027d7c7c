"""The sections of the page, one file per subject. Each turns views of the runs into blocks; none draws or escapes."""
