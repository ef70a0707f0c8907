from forebay.cli.main import main

main()
