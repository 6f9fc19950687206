"""What the package does with the pictures, folders, batches, weights and trainers that people have.

    python -m use_cases [--group NAME]          # in the folder benchmarks

Every case makes its own files, does what a user would do, and checks what comes of it; the table of all of
them is ``use_cases.md``. A case that no longer ends as it should ends the command with an error.
"""
