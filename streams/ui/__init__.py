"""The page ``weft ui``: a local web application that shows a table and its pipeline. Start at
`weft.streams.ui.serve`.
"""
