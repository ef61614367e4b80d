"""From a kernel's TTIR to the vendor's final module, one file a stage."""
