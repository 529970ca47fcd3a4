"""The page and the HTTP surface of a job: what a browser, a scraper or `curl` sees of it. The room
shows and passes orders on; it measures nothing and decides nothing.
"""
