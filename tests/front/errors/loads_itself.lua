dofile "loads_itself.lua"
