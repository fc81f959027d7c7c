"""Everything that uses Ray: the cluster, its actors, and recovery when actors are lost. Nothing else imports Ray."""
