"""How others place requests, each as a small `cluster.Policy` written from its public source. They see what they see in
reality: the prompt, their own counts, and what they scrape as late as they scrape it; never an answer's length."""
