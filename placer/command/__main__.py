from placer.command import main

main()
