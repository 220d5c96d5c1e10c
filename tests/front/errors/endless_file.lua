dofile "/dev/zero"
