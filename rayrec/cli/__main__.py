from rayrec.cli.main import main

main()
