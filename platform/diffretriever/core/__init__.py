"""What every package stands on: files, ledgers of finished work, progress, compiled loops, consent to run code."""
