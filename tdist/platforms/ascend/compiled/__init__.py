"""What the vendor's compiler left, read and checked."""
