"""Object stores: gs://, s3:// and every other address that fsspec opens.

All other rooms read and write folders. This room brings objects into a folder, and keeps a run's folder and its address
in the store alike. Open `mirror.py` first.
"""
