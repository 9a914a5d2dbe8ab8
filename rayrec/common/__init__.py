"""What every part of rayrec shares and none owns: errors, atomic files, console output."""
