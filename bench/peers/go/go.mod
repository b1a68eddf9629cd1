module peers

go 1.21
