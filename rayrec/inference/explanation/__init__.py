"""What a model's scores rest on: importance of features, partial dependence on one, and the parts of one row's score.

All of it changes columns of encoded rows and scores them again, so it holds for every model.
"""
