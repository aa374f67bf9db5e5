"""What lies between products on Arm cores, by SIMD instructions."""
