module exercise

go 1.21
