"""All logs of a machine: the directories that hold them, who opens them, and how they come and go."""
